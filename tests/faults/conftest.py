"""Imports, before ranks are forked, what each of them would otherwise import for seconds."""

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor

torch.set_num_threads(1)
