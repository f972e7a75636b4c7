"""cuDNN's own choice of a convolution kernel, asked without a card.

cuDNN is queried, not imitated. No known rule predicts when its heuristics copy only the input,
split a sum or take a kernel without workspace.
Since 9.8 cuDNN runs its heuristics for a card that is only described (deviceless compilation):
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/utilities/deviceless-ahead-of-time-compilation.html
It runs in a process of its own (`worker`), since it aborts where a library is missing. There it has
a cuBLASLt that claims to support the products which some kernels are made of (`cublaslt`). Where
cuDNN is not installed (a CPU build of torch), only the rules of operators/convolution/ apply.
Which of its kernels torch then runs, and the memory to find that out: `kernel_cache`.
"""
