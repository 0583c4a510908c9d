"""Registry of published families. To add one: a file in ``families`` and a line here."""

from __future__ import annotations

from qkv.interop.families.bart import BART, MBART
from qkv.interop.families.bert import BERT
from qkv.interop.families.bloom import BLOOM
from qkv.interop.families.deberta import DEBERTA, DEBERTA2
from qkv.interop.families.deit import DEIT
from qkv.interop.families.dinov2 import DINOV2
from qkv.interop.families.falcon import FALCON
from qkv.interop.families.gemma import GEMMA, GEMMA2, GEMMA3
from qkv.interop.families.gpt2 import GPT2
from qkv.interop.families.llama import LLAMA
from qkv.interop.families.longformer import LONGFORMER
from qkv.interop.families.mistral import MISTRAL
from qkv.interop.families.modernbert import MODERNBERT
from qkv.interop.families.mpnet import MPNET
from qkv.interop.families.mpt import MPT
from qkv.interop.families.neox import NEOX
from qkv.interop.families.patchtst import PATCHTST
from qkv.interop.families.perceiver import PERCEIVER
from qkv.interop.families.qwen2 import QWEN2
from qkv.interop.families.qwen3 import QWEN3
from qkv.interop.families.reformer import REFORMER
from qkv.interop.families.roberta import ROBERTA, XLM_ROBERTA
from qkv.interop.families.t5 import MT5, T5
from qkv.interop.families.vit import VIT
from qkv.interop.families.xlnet import XLNET
from qkv.interop.mapping.family import Family

FAMILIES: tuple[Family, ...] = (
    BERT,
    GPT2,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    BLOOM,
    MPT,
    NEOX,
    FALCON,
    GEMMA,
    GEMMA2,
    GEMMA3,
    ROBERTA,
    MODERNBERT,
    DEBERTA,
    DEBERTA2,
    LONGFORMER,
    XLNET,
    REFORMER,
    MPNET,
    XLM_ROBERTA,
    T5,
    MT5,
    BART,
    MBART,
    PERCEIVER,
    VIT,
    DEIT,
    DINOV2,
    PATCHTST,
)
