"""Forms of reasoning between tags, in the order in which a template is searched for them.

<think> … </think> …                      DeepSeek-R1, Qwen3, GLM 4.5, SmolLM3 and most others
[THINK] … [/THINK] …                      Magistral
<think> … </think><response> … </response>          Granite 3.3
<think> … </think><answer> … </answer>              Hunyuan
<|START_THINKING|> … <|END_THINKING|><|START_RESPONSE|> … <|END_RESPONSE|>      Command A
<seed:think> … </seed:think> …            Seed-OSS
Here is my thought process: … Here is my response: …                Granite 3.2
"""

from __future__ import annotations

from qkv.tokenizers.answers.thoughts import ThinkingForm, register

MAGISTRAL = register(ThinkingForm("magistral", "[THINK]", "[/THINK]"))
SEED = register(ThinkingForm("seed", "<seed:think>", "</seed:think>"))
COMMAND = register(
    ThinkingForm("command", "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))
)
GRANITE = register(ThinkingForm("granite", "<think>", "</think>", ("<response>", "</response>")))
HUNYUAN = register(ThinkingForm("hunyuan", "<think>", "</think>", ("<answer>", "</answer>")))
SENTENCES = register(ThinkingForm("sentences", "Here is my thought process:", "Here is my response:"))
THINK = register(ThinkingForm("think", "<think>", "</think>"))
