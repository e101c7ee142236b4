"""What is known of the values of tensors, and what a value that nobody computed counts as."""
