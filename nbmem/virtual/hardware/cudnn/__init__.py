"""cuDNN's own choice of a convolution kernel, asked without a card.

It is asked, not imitated: no rule that we found says when its heuristics copy only the input, split
a sum or take a kernel without workspace.
Since 9.8 cuDNN answers its heuristics for a card that is only described (deviceless compilation):
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/utilities/deviceless-ahead-of-time-compilation.html
It is asked in a process of its own (`worker`), for it aborts where a library is missing, and with a
cuBLASLt that promises the products which some kernels are made of (`products`). Where cuDNN is not
installed (a CPU build of torch) there is no answer, and the rules of operators/convolution/ stand
alone. Which of its kernels torch then runs, and what it takes to find that out: `kernel_cache`.
"""
