"""The stages of a recipe: a typed config in, one artifact folder out; ``base`` says what a stage is."""
