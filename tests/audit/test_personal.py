"""Personal data: what is found, in text as it is stored and as the inverter writes it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unembed
from unembed.audit import personal
from unembed.audit.leak import tokens_of
from unembed.audit.names import find_names, plain
from unembed.audit.personal import KINDS, Finding, KindScore, compare, find, normalised, redact
from unembed.audit.secrets import SHAPES, find_secrets, looks_random
from unembed.audit.spacing import join
from unembed.data.shards import load_tokenizer
from unembed.data.text import decode
from unembed.errors import DataError

PLANTED = {
    "EMAIL": ("Write to john.smith@example.co.uk about it.", "john.smith@example.co.uk"),
    "PHONE": ("Please call +1 (212) 555-0134 today.", "+1 (212) 555-0134"),
    "CARD": ("The card is 4111 1111 1111 1111, valid.", "4111 1111 1111 1111"),
    "IBAN": ("Pay to DE89370400440532013000 please.", "DE89370400440532013000"),
    "SSN": ("Her number is 536-90-4399 there.", "536-90-4399"),
    "IP": ("The host 192.168.20.1 is down.", "192.168.20.1"),
    "MAC": ("Card 00:1b:44:11:3a:b7 was seen.", "00:1b:44:11:3a:b7"),
    "URL": ("Look at https://www.acme.com/a/b?x=1 for more.", "https://www.acme.com/a/b?x=1"),
    "DATE": ("He was born 12/05/1980 somewhere.", "12/05/1980"),
    "NAME": ("I spoke with Maria Gonzalez yesterday.", "Maria Gonzalez"),
    "PLACE": ("They all live in San Francisco now.", "San Francisco"),
    "SECRET": ("The password: hunter2 was set.", "hunter2"),
}
# In parts, so that nobody's scanner takes this file for a leak.
KEYS = {
    "AWS access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS secret key": "wJalrXUtnFEMI/" + "K7MDENG/bPxRfiCYEXAMPLEKEY",
    "GitHub token": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "GitLab token": "glpat-" + "x8Yb2kQwErTyUiOpAsDf",
    "Slack token": "xoxb-" + "123456789012-abcdefGHIJKL",
    "Slack webhook": "hooks.slack.com/services/" + "T00000000/B00000000/XXXXXXXXXXXX",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "Stripe key": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "Google key": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "OpenAI or Anthropic key": "sk-" + "proj-abcdEFGH1234ijklMNOP5678",
    "npm token": "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmcCJDAwMDAw",
    "SendGrid key": "SG." + "ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf09kqeF8tAmbihYzrnopKc",
    "Hugging Face token": "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "Azure account key": "AccountKey=" + "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq==",
    "address with password": "postgres://bob:" + "s3cret@db.internal",
}


@pytest.fixture(scope="module")
def rewrite():
    """A text as the inverter would write it: without case, pieces apart."""
    tokenizer = load_tokenizer(unembed.SHIPPED / "tokenizer.json")
    return lambda text: decode(tokenizer, tokens_of(tokenizer, [text]))[0]


def of(kind: str, text: str) -> list[str]:
    return [text[one.start : one.end] for one in find(text) if one.kind == kind]


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_found_where_it_stands_and_again_in_recovered_text(kind, rewrite):
    text, value = PLANTED[kind]
    assert of(kind, text) == [value]
    written = rewrite(text)
    assert written != text
    assert [normalised(kind, one) for one in of(kind, written)] == [normalised(kind, value)]
    assert {one.kind for one in find(text)} == {kind}


@pytest.mark.parametrize("name", SHAPES)
def test_well_known_keys_are_found_also_without_case_and_with_spaces(name, rewrite):
    text = f"use {KEYS[name]} here"
    assert next(text[a:b] for a, b, score in find_secrets(text) if score > 0.9) in (KEYS[name], KEYS[name][:-2])
    assert of("SECRET", rewrite(text)), rewrite(text)


def test_words_are_no_secrets():
    for text in (
        "the password is required to log in",
        "the secret is out, and the token was lost",
        "see version-2.10.1-beta-20200101 of the state-of-the-art-method",
        "id 550e8400-e29b-41d4-a716-446655440000",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "https://github.com/a/b/tree/3f786850e387550fdab836ed7e6dc881de23001b",
        "/usr/local/lib/python3.11/site-packages/numpy",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1111",
    ):
        assert not of("SECRET", text), text
    assert looks_random("Zq8Lw2Xv9Rt5Yb1Nc7Md3")
    assert of("SECRET", "login with Zq8Lw2Xv9Rt5Yb1Nc7Md3 now") == ["Zq8Lw2Xv9Rt5Yb1Nc7Md3"]
    assert of("SECRET", "my pin is 4921") == ["4921"]


def test_years_bugs_and_versions_are_neither_phones_nor_dates():
    for text in ("By 1692 it was popular.", "see bug 1681076", "upgrade from 2.11.10", "numbers like 2.2.30 now"):
        assert not {"PHONE", "DATE"} & {one.kind for one in find(text)}, text


def test_sentences_keep_their_spaces():
    text = "it went home. in the end, no. me too. thanks for that. anna @ acme. com wrote"
    assert join(text).text == "it went home. in the end, no. me too. thanks for that. anna@acme.com wrote"
    assert of("EMAIL", text) == ["anna @ acme. com"]
    assert of("URL", "we went to town. net profit was up. com")[:1] == []


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab .@/:_-+'1é", max_size=60))
def test_joining_only_removes_spaces_and_knows_where_each_letter_was(text):
    joined = join(text)
    assert joined.text.replace(" ", "") == text.replace(" ", "")
    assert all(text[place] == letter for place, letter in zip(joined.places, joined.text, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text_can_be_searched_and_redacted(text):
    found = find(text)
    assert all(0 <= one.start < one.end <= len(text) and one.kind in KINDS and 0 < one.score <= 1 for one in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert redact(text, found).count("[") == text.count("[") + len(found) - sum(
        text[one.start : one.end].count("[") for one in found
    )


def test_redaction_leaves_nothing_of_the_value():
    text = "Mail john.smith@example.com, Maria Gonzalez, or call +1 (212) 555-0134."
    assert redact(text, find(text)) == "Mail [EMAIL], [NAME], or call [PHONE]."
    assert redact("abcdef", [Finding("A", 0, 3, 1), Finding("B", 2, 4, 1)]) == "[A]ef"
    with pytest.raises(DataError, match="another text"):
        redact("short", [Finding("EMAIL", 3, 9, 1.0)])


def test_names_need_no_capitals():
    for text in ("Dr. Maria Gonzalez met Peter in Berlin.", "dr. maria gonzalez met peter in berlin."):
        found = [(kind, plain(text[a:b])) for kind, a, b, _ in sorted(find_names(text), key=lambda one: one[1])]
        assert found == [("NAME", "maria gonzalez"), ("NAME", "peter"), ("PLACE", "berlin")]
    assert not list(find_names("he will mark the bill in may, and hope for a rich rose"))
    assert [(k, a) for k, a, *_ in find_names("Mark Brown paid the bill")] == [("NAME", 0)]
    assert [k for k, *_ in find_names("we met at 12 Baker Street")] == ["PLACE"]
    assert not list(find_names("Mr President, I thank the commissioner"))
    assert not list(find_names("He looked like his father. In the end it was the Fisher Foundation."))
    assert [k for k, *_ in find_names("the San Diego team and the Campbell County court")] == ["PLACE"]
    assert [k for k, *_ in find_names("he was told by Phaedra Chrousos about the Pax Mongolica")] == ["NAME"]


def test_recall_and_precision_count_values_of_the_same_row():
    originals = [
        "Ask José Peñaranda at jose.p@mail.org",
        "Call +1 (212) 555-0134",
        "nothing here at all",
        "Anna Schmidt",
    ]
    recovered = ["mail penaranda at jose. p @ mail. org", "call + 1 (212) 555-0199", "see bob smith", "nothing"]
    found = compare(originals, recovered)
    assert found["EMAIL"] == KindScore(stored=1, found=1, right=1, recall=1.0, precision=1.0)
    assert (found["PHONE"].stored, found["PHONE"].found, found["PHONE"].right) == (1, 1, 0)
    assert (found["NAME"].stored, found["NAME"].found, found["NAME"].right) == (4, 4, 2)  # words: jose, penaranda
    assert found["NAME"].recall == 2 / 4
    assert found["NAME"].precision == 2 / 4  # bob and smith are wrong
    assert compare(["nothing"], ["nothing"]) == {}
    # The same values in another row are not recovered.
    assert compare(originals[:2], recovered[1::-1])["EMAIL"].right == 0
    with pytest.raises(DataError, match="pairs"):
        compare(["a"], [])


def test_nothing_phones_home(monkeypatch):
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network")

    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    personal._analyzer.cache_clear()
    text = "mail bob@acme.com, see acme.org, 4111 1111 1111 1111, +1 (212) 555-0134"
    assert [one.kind for one in find(text)] == ["EMAIL", "URL", "CARD", "PHONE"]
    assert not asked


def test_a_missing_extra_yields_its_pip_command():
    code = (
        "import sys; sys.modules['presidio_analyzer'] = None\n"
        "from unembed.audit.personal import find\n"
        "from unembed.errors import MissingExtraError\n"
        "try: find('x')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("pip install 'unembed[pii]'")
    assert len(done.stdout.strip().splitlines()) == 1


def test_long_hostile_text_does_not_take_forever():
    for text in ("a. " * 1000, "a@" * 1000, "1 / " * 1000, "_ " * 1000, "x" * 5000, "a1/" * 1000, "a_" * 1000):
        began = time.process_time()
        find(text)
        assert time.process_time() - began < 5, text[:10]
