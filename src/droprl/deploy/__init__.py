"""Shipping a policy: as one ONNX file that acts and adapts without JAX, or as an HTTP service."""

from droprl.deploy.onnx_file import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
