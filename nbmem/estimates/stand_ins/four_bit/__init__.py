"""Stand in for bitsandbytes: 4-bit layers as `bnb.nn.Linear4bit`."""

from nbmem.estimates.stand_ins.four_bit import nn

__all__ = ["nn"]
