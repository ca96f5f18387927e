"""What `ChatEpic` is made of: messages and documents in, chunks of the answer out."""
