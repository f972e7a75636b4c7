"""Answer questions about language models before there is any code."""
