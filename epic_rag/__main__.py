"""`python -m epic_rag`."""

from epic_rag.cli import main

main()
