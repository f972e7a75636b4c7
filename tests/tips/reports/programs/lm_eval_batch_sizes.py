"""After EleutherAI/lm-evaluation-harness#3654: with batch_size="auto" a second task goes out of memory, although it runs alone."""

import functools
import gc
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
VOCAB, HIDDEN, LAYERS = 128256, 512, 4


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(HIDDEN, 8, 4 * HIDDEN, batch_first=True, norm_first=True)
                for _ in range(LAYERS)
            ]
        )
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(
            x.shape[1], device=x.device, dtype=x.dtype
        )
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.lm_head(x)


def should_reduce_batch_size(exception):
    return isinstance(exception, RuntimeError) and "out of memory" in str(exception)


def clear_torch_cache():
    gc.collect()
    torch.cuda.empty_cache()


def find_executable_batch_size(function=None, starting_batch_size=128):
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size
        )
    batch_size = starting_batch_size

    def decorator(*args, **kwargs):
        nonlocal batch_size
        clear_torch_cache()
        while True:
            if batch_size == 0:
                raise RuntimeError("No executable batch size found, reached zero.")
            try:
                return function(batch_size, *args, **kwargs)
            except Exception as e:
                if not should_reduce_batch_size(e):
                    raise
                clear_torch_cache()
                batch_size //= 2

    return decorator


class Collator:
    def __init__(self, arr, sort_fn):
        order = sorted(range(len(arr)), key=lambda i: sort_fn(arr[i]))
        self.order, self.arr = order, [arr[i] for i in order]

    def __len__(self):
        return len(self.arr)

    def get_batched(self, n, batch_fn=None):
        start = 0
        while start < len(self.arr):
            size = n if n > 0 else batch_fn(start, self.arr)
            yield self.arr[start : start + size]
            start += size

    def get_original(self, res):
        out = [None] * len(res)
        for position, value in zip(self.order, res):
            out[position] = value
        return out


class HFLM:
    def __init__(self, model, batch_size="auto", max_batch_size=64, max_length=2048):
        self.model, self.device, self.max_length = model, torch.device(DEVICE), max_length
        self.batch_size, self.batch_schedule, self.batch_sizes = batch_size, 1, {}
        self.max_batch_size = max_batch_size
        self.softmax_dtype = torch.float32

    def _model_call(self, inps):
        with torch.no_grad():
            return self.model(inps)

    def _detect_batch_size(self, requests=None, pos=0):
        if requests:
            _, context_enc, continuation_enc = requests[pos]
            max_length = len((context_enc + continuation_enc)[-(self.max_length + 1) :][:-1])
        else:
            max_length = self.max_length

        # if OOM, then halves batch_size and tries again
        @find_executable_batch_size(starting_batch_size=self.max_batch_size)
        def forward_batch(batch_size):
            test_batch = torch.ones((batch_size, max_length), device=self.device).long()
            for _ in range(2):
                out = F.log_softmax(self._model_call(test_batch), dim=-1, dtype=self.softmax_dtype)  # noqa: F841
            return batch_size

        batch_size = forward_batch()
        clear_torch_cache()
        return batch_size

    def _batch_scheduler(self, pos, n_reordered_requests):
        sched = pos // int(len(n_reordered_requests) / self.batch_schedule)
        if sched in self.batch_sizes:
            return self.batch_sizes[sched]
        print(
            f"Passed argument batch_size = auto:{self.batch_schedule}. Detecting largest batch size"
        )
        self.batch_sizes[sched] = self._detect_batch_size(n_reordered_requests, pos)
        print(f"Determined largest batch size: {self.batch_sizes[sched]}")
        return self.batch_sizes[sched]

    def loglikelihood_tokens(self, requests):
        res = []
        re_ord = Collator(requests, sort_fn=lambda req: -len(req[1] + req[2]))
        batch_size = self.batch_size if self.batch_size != "auto" else 0
        batch_fn = self._batch_scheduler if self.batch_size == "auto" and len(re_ord) > 0 else None
        if CURED and batch_fn is not None:
            self.batch_sizes = {}
        for chunk in re_ord.get_batched(n=batch_size, batch_fn=batch_fn):
            inps, cont_toks_list, inplens = [], [], []
            for _, context_enc, continuation_enc in chunk:
                inp = torch.tensor(
                    (context_enc + continuation_enc)[-(self.max_length + 1) :][:-1],
                    dtype=torch.long,
                    device=self.device,
                )
                inps.append(inp)
                cont_toks_list.append(continuation_enc)
                inplens.append(inp.shape[0])
            batched_inps = nn.utils.rnn.pad_sequence(inps, batch_first=True)
            multi_logits = F.log_softmax(
                self._model_call(batched_inps), dim=-1, dtype=self.softmax_dtype
            )
            for logits, inplen, cont_toks in zip(multi_logits, inplens, cont_toks_list):
                logits = logits[inplen - len(cont_toks) : inplen].unsqueeze(0)
                greedy_tokens = logits.argmax(dim=-1)
                cont_toks = torch.tensor(cont_toks, dtype=torch.long, device=self.device).unsqueeze(
                    0
                )
                max_equal = (greedy_tokens == cont_toks).all()
                logits = torch.gather(logits, 2, cont_toks.unsqueeze(-1)).squeeze(-1)
                res.append((float(logits.sum()), bool(max_equal)))
        return re_ord.get_original(res)


def build_requests(task, n, context_length):
    return [
        (
            (task, str(i)),
            [2 + (i * 7 + j) % 5000 for j in range(context_length - i % 5)],
            [5, 6, 7 + i % 4],
        )
        for i in range(n)
    ]


def simple_evaluate(lm, task, n, context_length):
    res = lm.loglikelihood_tokens(build_requests(task, n, context_length))
    print(
        f"{task}: {len(res)} requests, mean log-likelihood {sum(r[0] for r in res) / len(res):.3f}"
    )


def main():
    model = CausalLM().to(DEVICE).to(torch.float16).eval()
    lm = HFLM(model, batch_size="auto")
    simple_evaluate(lm, "arc_easy", 80, 50)
    simple_evaluate(lm, "mmlu", 80, 500)


if __name__ == "__main__":
    main()
