"""A watch sees its own thread: random interleavings of threads that share a model, and watches inside watches."""

from __future__ import annotations

import contextvars
import random
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import foveate as fv
from foveate.watch.swap import Change, swap


class Turns:
    """Threads that run one at a time; at every `pass_on` a seeded choice says which of them goes on."""

    def __init__(self, seed):
        self.random, self.changed = random.Random(seed), threading.Condition()
        self.alive, self.turn = [], None

    def run(self, programs):
        errors = []

        def body(program):
            try:
                self.wait()
                program()
            except BaseException as error:  # shown by the test
                errors.append(error)
            finally:
                with self.changed:
                    self.alive.remove(threading.get_ident())
                    self.choose()

        threads = [threading.Thread(target=body, args=(program,)) for program in programs]
        for thread in threads:
            thread.start()
        with self.changed:
            self.changed.wait_for(lambda: len(self.alive) == len(threads))
            self.alive.sort(key=[thread.ident for thread in threads].index)
            self.choose()
        for thread in threads:
            thread.join()
        return errors

    def wait(self):
        with self.changed:
            if threading.get_ident() not in self.alive:
                self.alive.append(threading.get_ident())
                self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == threading.get_ident())

    def choose(self):
        self.turn = self.random.choice(self.alive) if self.alive else None
        self.changed.notify_all()

    def pass_on(self):
        if threading.get_ident() in self.alive:
            with self.changed:
                self.choose()
            self.wait()


class Attention(nn.Module):
    """Two heads by SDPA or softmax; other threads may take over before and after."""

    def __init__(self, kind):
        super().__init__()
        self.qkv, self.kind, self.num_heads, self.turns = nn.Linear(8, 24), kind, 2, None

    def forward(self, x):
        self.pass_on()
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        self.pass_on()
        if self.kind == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            out = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        self.pass_on()
        return x + out.transpose(1, 2).flatten(2)

    def pass_on(self):
        if self.turns is not None:
            self.turns.pass_on()


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.attention = Attention(kind)

    def forward(self, x):
        return torch.relu(self.attention(x))


def network():
    torch.manual_seed(0)
    heads = nn.MultiheadAttention(8, 2, batch_first=True)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = heads

        def forward(self, x):
            return self.heads(x, x, x)[0]

    return nn.Sequential(Block("sdpa"), Block("softmax"), Attention("sdpa"), Heads()).eval()


NAMES = ["0.attention", "1.attention", "2", "3.heads"]


def is_as_before(model):
    return not any({"forward", "foveate_change"} & set(module.__dict__) for module in model.modules())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
@torch.no_grad()
def test_each_watch_records_the_calls_of_its_own_thread(seed):
    """Three threads run, watch and watch inside watches in a random order; every record is that of a run alone."""
    model, choose = network(), random.Random(seed)
    inputs = [torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    expected = []
    for x in inputs:
        with fv.watch(model) as alone:
            expected.append((model(x), [row.weights for row in alone]))
    turns, found = Turns(seed), []
    for module in model.modules():
        if isinstance(module, Attention):
            module.turns = turns

    def program(number, plan):
        def run_once():
            turns.pass_on()
            with torch.no_grad():
                torch.testing.assert_close(model(inputs[number]), expected[number][0], atol=0, rtol=0)

        def watch_and(depth):
            with fv.watch(model) as seen:
                count = 0
                for _ in range(plan.randint(1, 2)):
                    run_once()
                    count += 1
                    if depth and plan.random() < 0.6:
                        count += watch_and(depth - 1)
            found.append((number, count, seen))
            turns.pass_on()
            return count

        def body():
            before = torch._C._len_torch_function_stack()
            for _ in range(3):
                watch_and(1) if plan.random() < 0.6 else run_once()
                assert torch._C._len_torch_function_stack() == before

        return body

    programs = [program(number, random.Random(choose.random())) for number in range(3)]
    for error in turns.run(programs):
        raise error
    for number, count, seen in found:
        assert [row.name for row in seen] == NAMES * count
        assert [row.step for row in seen] == [step for step in range(count) for _ in NAMES]
        for row, weights in zip(seen, expected[number][1] * count, strict=True):
            torch.testing.assert_close(row.weights, weights, atol=0, rtol=0)
    assert is_as_before(model)


def test_a_thread_in_a_copy_of_the_context_is_watched():
    """As `asyncio.to_thread` starts one; a thread of its own context is not."""
    model, x = network(), torch.randn(1, 5, 8)
    with torch.no_grad(), fv.watch(model) as seen:
        for run in (contextvars.copy_context().run, lambda function, *args: function(*args)):
            thread = threading.Thread(target=run, args=(model, x))
            thread.start()
            thread.join()
    assert [row.name for row in seen] == NAMES


@pytest.mark.parametrize("grad", [False, True])
def test_watches_inside_a_watch_record_each_call_once(grad):
    model, x = network()[:3], torch.randn(1, 5, 8)
    with fv.watch(model, grad=grad) as outer, fv.watch(model) as middle, fv.watch(model, grad=grad) as inner:
        model(x)
    assert outer.names == middle.names == inner.names == NAMES[:3]
    assert len(outer) == len(middle) == len(inner) == 3
    for rows in zip(outer, middle, inner, strict=True):
        torch.testing.assert_close(rows[0].weights, rows[1].weights)
        torch.testing.assert_close(rows[0].weights, rows[2].weights)


@pytest.mark.parametrize("watch_ends_first", [False, True])
def test_changes_and_watches_end_in_any_order(watch_ends_first):
    """The change stays the innermost: a watch that begins before it records the weights of the new transform."""
    model, x = network()[:3], torch.randn(1, 5, 8)
    plain = model(x)
    watching = fv.watch(model)
    with torch.no_grad():
        seen = watching.__enter__()
        changed = swap(model, Change("sparsemax"), lambda name: True)
        model(x)
        ends = [lambda: watching.__exit__(None, None, None), changed.restore]
        first, second = ends if watch_ends_first else ends[::-1]
        first()
        assert torch.equal(model(x), plain) != watch_ends_first
        second()
    assert [row.via for row in seen][:3] == ["foveate"] * 3
    assert bool((seen[0].weights == 0).any())
    assert torch.equal(model(x), plain)
    assert is_as_before(model)


def test_a_change_follows_the_images_of_each_thread():
    """The grid of tvmax belongs to the call, not to the model."""
    pytest.importorskip("transformers")
    from foveate import hf
    from tests.watch.tiny import TINY

    model = TINY["ViT"].build()
    sizes = [(48, 32), (32, 48)]
    images = [torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0)) for size in sizes]

    def run(pixels):
        with torch.no_grad():
            return model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state

    with hf.use(model, "tvmax", smoothness=0.002):
        alone = [run(pixels) for pixels in images]
        for seed in range(5):
            turns, found = Turns(seed), {}
            handles = [
                module.register_forward_pre_hook(lambda *_, turns=turns: turns.pass_on())
                for name, module in model.named_modules()
                if name.endswith("attention")
            ]

            def program(number, found=found):
                return lambda: found.__setitem__(number, run(images[number]))

            for error in turns.run([program(0), program(1)]):
                raise error
            for handle in handles:
                handle.remove()
            assert all(torch.equal(found[n], alone[n]) for n in range(2))
    assert is_as_before(model)
