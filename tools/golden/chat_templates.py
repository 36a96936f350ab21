#!/usr/bin/env python3
"""Fixture of chat templates: what transformers makes of one message with each, called as diffusers'
ZImagePipeline calls it.

    VENV/bin/python tools/golden/chat_templates.py tests/data/tokenizer
"""
import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

# In the manner of models that think and call tools: most of it is never reached by one message.
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "</tools>{\\"name\\": <name>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thoughts)) %}
            {{- thoughts.strip('\\n') ~ message.tool_calls[0].arguments | tojson }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES = {
    "thinking": THINKING,
    "windows": THINKING.replace("\n", "\r\n"),
    "one line": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "bare": "{{ messages[0].content }}",
    "a system text": "{% set text = 'You paint.' %}[{{ bos_token }}|{{ eos_token }}|{{ nobody }}] {{ text }} {{ messages[-1]['content'] | trim }}",
    "spaces": "  a\n  {% if true %}\n    b {{ 1 + 2 }}\n  {% endif %}\n\n{# note #}\nc {%- if 1 < 2 -%}  d  {%- endif %}\n  {{- ' e ' -}}\n  f\n {%+ if 2 == 2 +%}\ng{% endif %}\n\n",
    "on a line": "x {% set a = 1 %}\n  y{% set b = a - 3 %} \n{{ b }}{{ a }}\n {% set c = -a %}{% set d = 2 %}  \n{{ c ~ d ~ none ~ true }}\n",
    "choices": "{{ 'yes' if messages|length == 1 else 'no' }} {{ 'a' if false }}{{ messages[5] is defined }} {{ 'b' in 'abc' and 'role' in messages[0] and 3 not in [0] if false else 'k' }}"
               "{{ x | default('none') }} {{ not 1 or 0 or 'last' }} {{ 'str' is not string }} {{ '%}' + \"'\" + '\\'' }}",
    "scopes": "{% set n = 0 %}{% set ns = namespace(n=0) %}{% for m in messages %}{% set n = n + 1 %}{% set ns.n = ns.n + loop.index %}{{ n }}{% endfor %}{{ n }}{{ ns.n }}",
    "empty": "",
}
MESSAGES = ["a red apple", "  spaces \n and {{ braces }} {% if %} ", "<tool>x</tool>", "", "naïve 🍎"]

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    cases = []
    for name, template in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<|endoftext|>",
                                            eos_token="<|im_end|>", chat_template=template)
        texts = [tokenizer.apply_chat_template([{"role": "user", "content": message}], tokenize=False,
                                               add_generation_prompt=True, enable_thinking=True) for message in MESSAGES]
        cases.append(dict(name=name, template=template, texts=texts))
        print(name, repr(texts[0]))
    result = dict(messages=MESSAGES, names=dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"), cases=cases)
    (folder / "chat_templates.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
