"""Array libraries that are not installed: as much of CuPy and JAX as is used, over arrays on the stub's GPUs."""

import types

import numpy as np


class Cupy(types.ModuleType):
    """As much of CuPy as is used: a type, a current stream per device, and empty, which minds the current device."""

    def __init__(self, array):
        super().__init__("cupy")
        self.streams = {0: 0x51, 1: 0x52}
        self.current_device = 0
        cupy = self

        class ndarray:
            def __init__(self, inner):
                self.inner = inner
                self.asked = []
                self.shape, self.dtype = inner.shape, np.dtype(inner.dtype)

            def __dlpack_device__(self):
                return self.inner.__dlpack_device__()

            def __dlpack__(self, *, stream=None):
                self.asked.append(stream)
                return self.inner.__dlpack__()

            @property
            def device(self):
                return _CupyDevice(cupy, self.inner.device)

        ndarray.__module__ = "cupy"
        self.ndarray = ndarray
        self.cuda = types.SimpleNamespace(
            get_current_stream=lambda device: types.SimpleNamespace(ptr=self.streams[device])
        )
        self.empty = lambda shape, dtype: ndarray(array(shape, dtype=dtype, device=self.current_device))


class _CupyDevice:
    def __init__(self, cupy, number):
        self.cupy, self.number = cupy, number

    def __enter__(self):
        self.before, self.cupy.current_device = self.cupy.current_device, self.number

    def __exit__(self, *_):
        self.cupy.current_device = self.before


class Jax(types.ModuleType):
    """As much of JAX as is used: arrays that are values, and from_dlpack on a stream of JAX's own."""

    def __init__(self, array):
        super().__init__("jax")

        class ArrayImpl:
            def __init__(self, inner, memory=None):
                self.inner, self.memory = inner, memory
                self.asked = []
                self.shape, self.dtype = inner.shape, np.dtype(inner.dtype)

            def __dlpack_device__(self):
                return self.inner.__dlpack_device__()

            def __dlpack__(self, *, stream=None):
                self.asked.append(stream)
                return self.inner.__dlpack__()

        ArrayImpl.__module__ = "jaxlib._jax"
        self.ArrayImpl = ArrayImpl
        self.dlpack = types.SimpleNamespace(from_dlpack=self._from_dlpack)
        self.taken = []

    def _from_dlpack(self, producer):
        assert producer.__dlpack_device__() == (2, 0)
        capsule = producer.__dlpack__(stream=0x77)
        self.taken.append(capsule)
        return self.ArrayImpl(types.SimpleNamespace(shape=(64, 1000), dtype="float32"), capsule)
