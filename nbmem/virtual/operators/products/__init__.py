"""Matrix products by cuBLAS and cuBLASLt, and what is made of them."""
