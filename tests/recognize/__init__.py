"""Recognition under attack: models in ONNX's text form and what must hold for each of them."""
