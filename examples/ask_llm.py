"""Ask a language model for the class of every text, through any server that speaks OpenAI's chat protocol.

    python examples/ask_llm.py more.csv dev.csv -o answers.jsonl --model gpt-4o-mini --classes negative,positive --codes

writes one line a text to answers.jsonl, with the log-probabilities of the classes: what `distilcal distill --teacher` reads. A
text that is in answers.jsonl already is not asked about again, so the same command continues after it was stopped. The server
and the key are those of the environment: OPENAI_BASE_URL and OPENAI_API_KEY. examples/llm_teacher.md shows the whole way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import string
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import BadRequestError, OpenAI, OpenAIError

from distilcal.errors import DistilcalError, InputError
from distilcal.io.tables import read_table, stream_records

INSTRUCTION = "Classify the text."


@dataclass(frozen=True)
class Question:
    """What is asked about every text.

    Attributes
    ----------
    model : str
        Name of the model on the server.
    prompt : str
        The system message: what to do, and which words to answer with.
    words : dict of str to str
        The class that each possible answer stands for: codes such as A, B, C, or the names of the classes in lower case.
    top : int
        How many log-probabilities to ask for.
    """

    model: str
    prompt: str
    words: dict[str, str]
    top: int

    def class_of(self, answer: str) -> str | None:
        """Return the class that an answer stands for; spaces around it do not matter, nor does the case of a name."""
        word = answer.strip()
        return self.words.get(word) or self.words.get(word.casefold())


def build_question(model: str, classes: list[str], *, codes: bool, instruction: str, top: int) -> Question:
    """Return the question about these classes, to be answered with their names or with one letter each."""
    if len(classes) < 2:
        raise InputError(f"{len(classes)} class", remedy="give at least two: --classes negative,positive")
    if codes:
        if len(classes) > len(string.ascii_uppercase):
            raise InputError(f"{len(classes)} classes and 26 letters", remedy="leave out --codes")
        words = dict(zip(string.ascii_uppercase, classes, strict=False))
        answers = "\n".join(f"{letter}: {name}" for letter, name in words.items())
        prompt = f"{instruction} The classes are:\n{answers}\nAnswer with the letter of the class and nothing else."
    else:
        words = {name.casefold(): name for name in classes}
        prompt = f"{instruction} Answer with one of these words and nothing else: {', '.join(classes)}."
    return Question(model, prompt, words, top)


def ask(client: OpenAI, question: Question, text: str) -> dict[str, Any] | None:
    """Return the model's answer about a text as a line of the answers file; None if it cannot be used."""
    try:
        reply = client.chat.completions.create(
            model=question.model,
            messages=[{"role": "system", "content": question.prompt}, {"role": "user", "content": text}],
            max_tokens=1,
            temperature=0,
            logprobs=True,
            top_logprobs=question.top,
        )
    except BadRequestError as error:  # this text is too long for the model, or its provider refuses it
        print(f"skipped: {error.message} ({text[:60]!r})", file=sys.stderr)
        return None
    choice = reply.choices[0]
    if choice.logprobs is not None and choice.logprobs.content:
        first = choice.logprobs.content[0]
        scores = class_logprobs(question, [(token.token, token.logprob) for token in first.top_logprobs])
        return {"text": text, "top_logprobs": scores} if scores else None
    name = question.class_of(choice.message.content or "")  # the server gives no log-probabilities: the answer alone
    return None if name is None else {"text": text, "label": name}


def class_logprobs(question: Question, tokens: list[tuple[str, float]]) -> dict[str, float]:
    """Return the log-probabilities of the classes that some token stands for; tokens such as " A" and "A" are added."""
    probabilities: dict[str, float] = {}
    for token, logprob in tokens:
        name = question.class_of(token)
        if name is not None:
            probabilities[name] = probabilities.get(name, 0.0) + math.exp(logprob)
    return {name: math.log(min(value, 1.0)) for name, value in probabilities.items() if value > 0}


def answered_texts(path: Path) -> set[str]:
    """Return the texts that an answers file has already; a line that a killed run left unfinished is cut off."""
    if not path.exists():
        return set()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return {record.get("text", "") for _, record in stream_records(path)}


def ask_all(client: OpenAI, question: Question, texts: list[str], path: Path, *, workers: int) -> int:
    """Append the answers about all texts to a file, each as soon as it is there; return how many could not be used."""
    unused = 0
    with open(path, "a", encoding="utf-8") as file, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(ask, client, question, text) for text in texts]
        try:
            for future in as_completed(futures):
                answer = future.result()
                if answer is None:
                    unused += 1
                    continue
                file.write(json.dumps(answer) + "\n")
                file.flush()
        finally:
            pool.shutdown(cancel_futures=True)
    return unused


def main(arguments: list[str] | None = None) -> None:
    """Ask about all texts of the files that are named."""
    parser = argparse.ArgumentParser(description="Ask a language model for the class of every text.")
    parser.add_argument("data", nargs="+", type=Path, help=".csv, .tsv, .jsonl or .parquet with a column of texts")
    parser.add_argument("-o", "--output", type=Path, default=Path("answers.jsonl"), help="where answers are appended")
    parser.add_argument("--model", required=True, help="name of the model on the server")
    parser.add_argument("--classes", required=True, help="names of the classes, separated by commas")
    parser.add_argument("--codes", action="store_true", help="let the model answer with one letter a class: A, B, C …")
    parser.add_argument("--instruction", default=INSTRUCTION, help="what to do with the text, in a sentence or two")
    parser.add_argument("--text", default="text", help="column of texts")
    parser.add_argument("--top", type=int, default=5, help="log-probabilities to ask for; most servers give up to 20")
    parser.add_argument("--workers", type=int, default=8, help="requests at a time")
    parser.add_argument("--retries", type=int, default=8, help="how often to ask again after 429, 5xx or a lost connection")
    options = parser.parse_args(arguments)
    try:
        classes = [name.strip() for name in options.classes.split(",")]
        question = build_question(options.model, classes, codes=options.codes, instruction=options.instruction, top=options.top)
        texts = [text for path in options.data for text in read_table(path).texts(options.text)]
        done = answered_texts(options.output)
        open_texts = [text for text in dict.fromkeys(texts) if text not in done]
        print(f"{len(set(texts)):,} texts, {len(open_texts):,} of them without an answer")
        client = OpenAI(max_retries=options.retries)
        unused = ask_all(client, question, open_texts, options.output, workers=options.workers)
    except (DistilcalError, OpenAIError, KeyboardInterrupt) as error:
        problem = "stopped" if isinstance(error, KeyboardInterrupt) else f"error: {error}"
        sys.exit(f"{problem}\nAnswers so far are in {options.output}; the same command continues from there.")
    print(f"Wrote {options.output}: {len(open_texts) - unused:,} new answers, {unused:,} that could not be used.")


if __name__ == "__main__":
    main()
