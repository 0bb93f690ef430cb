"""The PyTorch layer: operators, gradients, modules, and torch's own operators routed to onepass.

The only folder that imports torch. It is imported when a tensor needs it, or by `onepass.install` and `onepass.nn`.
"""
