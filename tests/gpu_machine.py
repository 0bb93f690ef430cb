"""Runs CUDA plans on this machine's GPU: what simulator.Simulator does on a CPU, with the same interface."""

import numpy as np

from onepass import _engine
from onepass.cuda.compile import compile_kernel
from onepass.cuda.compile_all import compile_all
from onepass.cuda.launch import read_device

_GUARD = 256  # bytes before and after what a kernel may write
_GUARD_BYTE = 0xA5


class Gpu:
    """The kernels of some plans on GPU 0."""

    def __init__(self, plans):
        import torch

        self._torch = torch
        self._architecture = read_device(0).architecture
        self._kernels = {}
        compile_all(plans, self._architecture)
        assert _engine.register_exchange_type(torch.Tensor)

    def close(self):
        self._kernels.clear()

    def launch(self, plan, arrays, *, grid, seed):
        """Runs a plan with that many blocks; the arrays' contents afterwards. The hardware takes no seed."""
        del seed
        blocks = [self._memory(array) for array in arrays]
        words = [0] * plan.arrays + list(plan.words)
        views = {}
        for array, (memory, offset) in zip(arrays, blocks, strict=True):
            for word in (array.word, array.word if array.also is None else array.also):
                words[word] = memory.data_ptr() + offset + array.into
                views[word] = self._view(memory, offset, array.into)
        bound = _engine.bind_gpu(
            kernel=self._kernel(plan),
            algorithm=plan.algorithm,
            threads=plan.threads,
            cluster=plan.cluster,
            cooperative=plan.team > 0,
            shared_bytes=plan.shared_bytes,
            units=grid // max(1, plan.team),
            units_per_block=1,
            waves=0,
            arrays=plan.arrays,
            team=plan.team,
            scratch_bytes=plan.scratch_bytes,
            hands_out=plan.hands_out,
            unit_slots=plan.unit_slots,
            words=words[plan.arrays :],
            result_dtype=0,
            shape=(1,),
            make=None,
            positional=(),
            keyword_names=None,
            keyword_values=(),
            finish=None,
        )
        _engine.run(bound, *(views[word] for word in range(plan.arrays)))
        return [self._contents(array, *block) for array, block in zip(arrays, blocks, strict=True)]

    def _memory(self, array):
        """Memory that holds an array where it is to lie, and where in it that is."""
        data = np.frombuffer(array.data.tobytes(), np.uint8)
        host = np.full(2 * _GUARD + array.offset + data.size, _GUARD_BYTE, np.uint8)
        host[_GUARD + array.offset :][: data.size] = data
        memory = self._torch.from_numpy(host).cuda()
        assert memory.data_ptr() % 128 == 0
        return memory, _GUARD + array.offset

    def _view(self, memory, offset, into):
        """A tensor that starts at the array's address: kernels are told of no more."""
        return memory[offset + into :][:2].view(self._torch.bfloat16)

    def _contents(self, array, memory, offset):
        host = memory.cpu().numpy()
        end = offset + array.data.nbytes
        assert (host[:offset] == _GUARD_BYTE).all(), "something was written before the array"
        assert (host[end:] == _GUARD_BYTE).all(), "something was written behind the array"
        return np.frombuffer(host[offset:end].tobytes(), array.data.dtype).reshape(array.data.shape)

    def _kernel(self, plan):
        if plan.kernel not in self._kernels:
            cubin = compile_kernel(plan.header, plan.kernel, self._architecture, source=plan.source)
            self._kernels[plan.kernel] = _engine.load_kernel(0, cubin.code, cubin.symbol)
        return self._kernels[plan.kernel]
