"""Search passages from your own Python program. The classes are public under the package's name."""
