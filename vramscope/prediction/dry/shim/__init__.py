"""The world that a program meets in a dry run: ``torch.cuda``, the network and files as it expects them."""
