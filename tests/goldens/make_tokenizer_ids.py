"""Writes the golden token ids of tricky texts, by independent readers of the same GGUF files.

smollm2_tokenizer_ids.json comes from Hugging Face transformers 5.24.0 (tokenizers 0.23.3, byte-level
BPE), stories260k_tokenizer_ids.json from llama.cpp (llama-cpp-python 0.3.36, SentencePiece BPE):

    python make_tokenizer_ids.py SmolLM2-135M-Instruct.Q4_1.gguf stories260K.gguf

smollm2_prompts.json holds chats with the prompt and the ids that transformers and llama.cpp agree on.
"""

import json
import sys
from pathlib import Path

import llama_cpp
import transformers

TEXTS = [
    "",
    " ",
    "  ",
    "   leading and trailing   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\t\ttabs\tin\tbetween",
    "\r\nwindows\r\nlines\r\n",
    "a  b   c    d     e",
    "Hello, world!",
    "hello HELLO HeLLo hELLO",
    "I'm you're he's we'll they'd I've don't",
    "I'M YOU'RE HE'S WE'LL THEY'D I'VE DON'T",
    "it’s “quoted” — with … typography",
    "''''''s 't 're",
    "0123456789",
    "1 22 333 4444 55555",
    "3.14159, -2.718e-10, 1,000,000 and 0xDEADBEEF",
    "v1.2.3-rc4+build5",
    "²³½¾ⅧⅫ①⓿",
    "١٢٣ ०१२ ๑๒๓",
    "x=1;y=2",
    "!!! ??? ... ,,, ;;;",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "http://user:pass@example.com:8080/a/b?c=d&e=f#g",
    "someone@example.org",
    "C:\\Windows\\System32\\drivers\\etc",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE",
    "supercalifragilisticexpialidocious",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b"}}',
    '<div class="a">text &amp; more</div>',
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "$\\frac{a}{b} = \\sum_{i=0}^{n} x_i$",
    "café naïve façade Ångström",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "Straße ẞ ŒUVRE æther Þórr",
    "İstanbul ıI ſ",
    "Привет, как дела?",
    "Καλημέρα κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界。今天天气很好！",
    "日本語のテキスト、カタカナとひらがな。",
    "안녕하세요 세계",
    "Cửa Việt",
    "😀",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "text😀text 😀 text",
    "\U0001f9ff\U0002070e\U000e0001",
    "zero\u200bwidth\u200djoiner\ufeffbom",
    "nbsp\u00a0thin\u2009ideographic\u3000space\u2028line",
    "\u0000\u0001\u0007\u001b[31mred\u001b[0m\u007f",
    "\ufffd\uffff",
    "combining: a\u0300\u0301\u0302\u0303\u0304\u0305",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|><|im_end|><|endoftext|>",
    " <|im_end|> spaced <|im_end|>",
    "<|im_start and <|IM_END|> are plain text",
    "mixed 中文 with English и русский 123 😀 end",
]


def write(name: str, ids: list[list[int]]) -> None:
    cases = [{"text": text, "ids": row} for text, row in zip(TEXTS, ids, strict=True)]
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name(name).write_text(f"[\n{lines}\n]\n")


def main(smollm2: Path, stories260k: Path) -> None:
    hf = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    ids = [hf.encode(text, add_special_tokens=False) for text in TEXTS]
    write("smollm2_tokenizer_ids.json", ids)
    llama = llama_cpp.Llama(str(stories260k), vocab_only=True, verbose=False)
    ids = [llama.tokenize(text.encode(), add_bos=True, special=True) for text in TEXTS]
    write("stories260k_tokenizer_ids.json", ids)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
