"""Stand in for packages that are not installed, with their layers' memory.

An estimate imports these where peft or bitsandbytes is missing. The layers keep and make the same
tensors; tests/estimate/test_stand_ins.py compares them with the packages to the byte.
"""
