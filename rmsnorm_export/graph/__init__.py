"""An ONNX file: read, checked, ordered and written, its external weights never loaded."""
