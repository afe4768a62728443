"""What a recipe will take: steps, tokens, operations, disk and hours, before anything is computed."""
