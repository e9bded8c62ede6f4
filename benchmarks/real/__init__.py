"""Methods on small pretrained models: passages of plain English, and questions about them."""
