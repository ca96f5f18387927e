"""The stages of an ingest, one a file; `epic_rag/ingest.py` lists them in order."""
