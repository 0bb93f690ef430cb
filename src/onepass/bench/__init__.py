"""The benchmark: onepass against a copy of the same bytes and against the libraries people use today.

>>> from onepass.bench import list_cells
>>> list_cells()[0].split()[0]
'softmax-4096x1024'
"""

from onepass.bench.run import list_cells, run_benchmark, show_results

__all__ = ["list_cells", "run_benchmark", "show_results"]
