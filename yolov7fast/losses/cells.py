"""The cells of candidates, and every cell's objectness, read out of the head's raw outputs."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F


def read_cells(
    places: torch.Tensor | None, cells: Sequence[torch.Tensor], raw: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, widest) rows of the candidates' cells, and the objectness of every cell of every raw output, end to end.

    cells: of each raw output, the flat indices of its candidates; places: see `_ReadCells`. Both results are in the
    loss's precision; rows of outputs with fewer classes are filled with zeros.
    """
    return _ReadCells.apply(places, *cells, *raw)


class _ReadCells(torch.autograd.Function):
    """Backward writes one gradient for each raw output, where indexing and slicing would write three and add them up,
    and rounds an objectness gradient to the output's precision once, when it is complete.

    A raw output may lie in memory in any order (a permuted convolution output); it is not copied, and its gradient lies
    alike. Such an output is read by `places`, (4, n) image, anchor, row, column; one in order, as ordinary heads write
    it, by the flat indices of its cells.
    """

    @staticmethod
    def forward(ctx, places, *cells_and_raw):
        cells, raw = _halves(cells_and_raw)
        ctx.save_for_backward(places, *cells)
        ctx.layouts, ctx.dtype = [(m.shape, m.stride()) for m in raw], raw[0].dtype
        precision = torch.promote_types(ctx.dtype, torch.float32)
        width = max(m.shape[-1] for m in raw)
        rows, objectness = [], []
        for c, place, m in zip(cells, _by_output(places, cells), raw):
            flat = _flat(m) if m.is_contiguous() else None
            row = m[place] if flat is None else flat.index_select(0, c)
            rows.append(row if row.shape[1] == width else F.pad(row, (0, width - row.shape[1])))
            objectness.append(m[..., 4].reshape(-1) if flat is None else flat[:, 4])
        return torch.cat(rows).to(precision), torch.cat(objectness).to(precision)

    @staticmethod
    def backward(ctx, *grad_outputs):
        grad_rows, grad_objectness = grad_outputs
        places, *cells = ctx.saved_tensors
        grads = []
        rows = grad_rows.split([len(c) for c in cells])
        objectness = grad_objectness.split([shape[:-1].numel() for shape, _ in ctx.layouts])
        by_output = _by_output(places, cells)
        for c, place, (shape, stride), row, obj in zip(cells, by_output, ctx.layouts, rows, objectness):
            grad = grad_rows.new_empty_strided(shape, stride, dtype=ctx.dtype).zero_()
            where, to = ((c,), _flat(grad)) if grad.is_contiguous() else (place, grad)
            to.index_put_(where, row[:, : shape[-1]].to(ctx.dtype), accumulate=True)  # in the same order on every run
            obj = obj.index_put((c,), row[:, 4], accumulate=True)
            grad[..., 4] = obj.view(shape[:-1])
            grads.append(grad)
        return None, *[None] * len(cells), *grads


def _halves(items: Sequence) -> tuple[Sequence, Sequence]:
    return items[: len(items) // 2], items[len(items) // 2 :]


def _flat(raw: torch.Tensor) -> torch.Tensor:
    """A contiguous raw output as rows, one for each cell."""
    return raw.view(-1, raw.shape[-1])


def _by_output(places: torch.Tensor | None, cells: Sequence) -> Iterable[tuple[torch.Tensor, ...] | None]:
    """Image, anchor, row and column of the candidates of each raw output."""
    return [None] * len(cells) if places is None else [p.unbind() for p in places.split([len(c) for c in cells], 1)]
