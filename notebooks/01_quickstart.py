# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why are N machines not N times faster?
#
# You own a few Macs, you join them with Thunderbolt cables, you cut a language model over them, and it does
# not get as many times faster as there are Macs. tbkit shows where the rest of the time went.
#
# None of those Macs is needed to read or to run this page. It starts several *engines* on one computer, cuts
# a small real model over them, measures it, and accounts for the time. Everything here carries the word
# **local**: the engines, the computing and the messages between the engines are real, and all of it happens
# on one machine, whose cores and memory the engines share. So this page teaches the causes. It makes no claim
# about the speed of any Mac, of a Thunderbolt cable, or of a cluster made of them.
#
# The page reads without a kernel. To run it yourself: `make lab`, open it, and choose *Run All Cells*.

# %% [markdown]
# ## Load
#
# One line loads the extension. It prints nothing and asks nothing of the network.

# %%
# %load_ext tbkit

# %% [markdown]
# `form()` says how much to measure. The whole form takes some minutes; with `TBKIT_SMALL=1` in the environment
# it is cut down to what a test has time for.

# %%
import os

import tbkit as tb
from tbkit.main_job import form

design, kinds = form()
nodes = max(design.on)
print(f"{nodes} engines will share the {os.cpu_count()} cores of this machine")
print(f"measured on {', '.join(map(str, design.on))} of them: {design.blocks} blocks, {design.steps} tokens in each")

# %% [markdown]
# ## Connect
#
# An *engine* stands for one machine: on a real cluster, one on each Mac. Beside each engine runs its *rank
# process*, which holds that machine's part of the model and is replaced when it dies.

# %%
# cl = %tbcluster connect --local {nodes}
cl

# %% [markdown]
# `%px` runs a line on every engine at once. There, `fabric` is the way to the other engines, and an *all-reduce*
# adds up what all of them hold and gives everybody the sum. Each engine brings ones, so each prints how many
# engines there are.

# %%
# %px print(fabric.all_reduce(np.ones(4))[0])

# %% [markdown]
# ## Plan
#
# A *plan* says who holds which part of the model. These are all kinds of plan for two engines; those that cannot
# be stay in the list, with the reason.
#
# Look at the row `tensor`. Cutting every layer into even parts is what most programs do. The heads of this model
# do not divide evenly, so tbkit refuses: a program that cuts them all the same cuts through the middle of a head,
# reports no error, and answers nonsense. `tensor-uneven` gives one engine more heads than the other instead.

# %%
plans = tb.plan("smollm2-135m-instruct", 2)
plans

# %% [markdown]
# ## Cut the model and ask it something
#
# `shard` loads onto each engine its own part, here by the best plan that fits. Neither of the two can go on alone:
# every word of the answer takes both of them, and messages between them in every layer.

# %%
model = tb.shard(cl, plans)
model

# %%
answer = model.generate("The capital of France is", count=16)

# %% [markdown]
# ## Measure
#
# Now the question itself: how much faster is it, cut over more engines? A measurement that answers it has to be
# made with care, and this is what happens below, without a word from you:
#
# 1. one engine runs the model alone and gives the reference, the right answers;
# 2. a *gate* checks each plan against it: does every part of the model have exactly one owner, and are the
#    numbers that come out the same within what a change of the order of additions makes? A plan that fails is
#    WRONG and gets no speed;
# 3. then the arms are timed in blocks of random order, so that a slow minute of the machine hits all of them alike.
#    Every sample is kept.

# %%
run = tb.scale(cl, "decode", kinds, design=design, say=print)

# %% [markdown]
# Read the picture like this: the dashed line is what N engines would give if nothing were lost. Each mark is what
# was measured, and its bar is the interval in which the truth lies with 95 % confidence. A mark below 1 is slower
# than one engine alone.
#
# Two engines come first in every table, because that is the fair case on a small machine. Where a warning says
# *oversubscribed*, there are more ranks than cores: they take turns on the cores, as they would not on a cluster,
# where each has a machine of its own.

# %%
run

# %% [markdown]
# In words, and no more than the intervals allow:

# %%
for s in sorted(run.record.speedup, key=lambda s: s.nodes):
    told = "faster than" if s.low > 1 else "slower than" if s.high < 1 else "not told apart from"
    crowd = f": {s.nodes} ranks take turns on {os.cpu_count()} cores" if s.nodes > os.cpu_count() else ""
    print(f"{s.nodes} engines, {s.plan}: {told} one engine{crowd}")

# %% [markdown]
# ## Explain
#
# The *ledger* divides the gap between the ideal step and the measured one into causes, and it has to add up. Each
# cause is measured by taking it away: the same warm processes run the step again with messages that carry almost
# nothing, with no messages at all, one engine at a time, and the differences are the terms.
#
# | term | in plain words |
# |---|---|
# | replicated | work that every engine repeats, because that part is not cut |
# | shape | thinner pieces are computed at a lower rate than the whole |
# | contention | the engines get in each other's way: cores, caches, memory |
# | imbalance | one has more to do, the others wait for it |
# | fence | the computation is stopped and started again around every message |
# | wait, bubble | somebody arrives late; a stage stands idle |
# | latency | what a message costs however short it is |
# | transfer | what its bytes cost |
# | instruments | what the measuring itself adds to the step, taken out again |
#
# In the picture the bars walk from the ideal time down to the measured one. A hatched bar is one whose interval
# covers zero: this run cannot tell it from nothing. The diamond is a second measurement of the same term by other
# means, and the *residual* is what the second ones leave unexplained. A term may help as well as cost.

# %%
why = tb.explain(run)
why

# %% [markdown]
# ## What if the answer is wrong?
#
# A cluster that answers wrongly is often a fast one. So here is a fault, planted on purpose: one layer of the model
# is left out. What is left would still write text, and sooner. The gate finds it and names the layer, and no speed is
# given.

# %%
once = tb.scale.Design(on=(2,), blocks=2, steps=2, loads=1, seed=1, spread_orders=1)
wrong = tb.scale(cl, "decode", ["tensor-uneven"], design=once, plant="dropped-layer:12")
wrong

# %% [markdown]
# ## Disconnect
#
# This stops the ranks, the engines and the controller, and waits until they are gone.

# %%
# %tbcluster disconnect

# %% [markdown]
# ## And with Macs?
#
# The same cells run on a cluster when its machines are named in place of `--local`; that is not built yet, and
# nothing on this page was measured on one. What carries over is the question, the gate and the ledger; what does
# not is every number.
#
# The same job with one command and a report in one file: `make quickstart`. The run that you made is a folder in
# `tbkit-runs`: `tbkit explain last` reads it again.
