"""The same checkpoint in sentence-transformers."""

from sentence_transformers import SentenceTransformer  # pip install sentence-transformers

model = SentenceTransformer("cocondenser")
vectors = model.encode(["Parse a JSON document.", "Walk a directory tree."])
print(model.similarity(vectors, vectors))  # inner products of CLS vectors
