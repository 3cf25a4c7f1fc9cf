"""What every kernel module of `references` has in common: its signature, its cases, its mistakes, and how it is found."""

from references.contract.case import Case
from references.contract.kernel import Kernel, kernels, schedule
from references.contract.signature import Operand, Signature

__all__ = ["Case", "Kernel", "Operand", "Signature", "kernels", "schedule"]
