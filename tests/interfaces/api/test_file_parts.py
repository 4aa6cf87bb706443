"""Texts and files over the API and on pages: as programs send them, and as people see them."""

import base64
from hashlib import sha256

import pytest
from pictures import pdf, png

from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.projections.views.content import held_in
from ayes.schemas import events as e
from ayes.schemas.content import attached, by_digest
from ayes.schemas.errors import AlreadyFilled
from ayes.schemas.slots import CallRef, ThreadRef

CALL = "shop/order-17/refund-1"
FILES = "/api/v1/threads/shop/order-17/files"
PROGRAM = Visitor("desk", frozenset({Role.SERVICE}), "token")
PICTURE, LARGE = png(), png(200, 200, 0)


def held(data, media_type="image/png", name="receipt.png"):
    digest = sha256(data).hexdigest()
    return {"digest": digest, "media_type": media_type, "name": name, "size": len(data)}


def unplaced(told):
    """What is told of files, without their places in the store, which have random ids."""
    return [{key: one[key] for key in one if key != "place"} for one in told]


def sent(data, media_type="image/png", name="receipt.png"):
    """The part of a request that holds a file."""
    source = {"kept": "inline", "data": base64.b64encode(data).decode()}
    return {"part": "media", "media_type": media_type, "name": name, "source": source}


def text(said):
    return {"part": "text", "text": said}


async def started(shop, call=CALL):
    """A call that people have approved, claimed by the program."""
    digest = await shop.ask(call)
    await (await shop.app.state.backend.reviewer("ben")).vote(
        call, Ballot("approve", digest=digest)
    )
    await shop.service.decision(call, timeout_s=60)
    return await shop.service.start(call)


@pytest.mark.parametrize("data", [PICTURE, LARGE], ids=["in the fact", "stored"])
async def test_a_call_that_returned_a_file_is_shown(shop, client, data):
    """With its files in words for readers of text, and as links to the bytes."""
    await started(shop)
    output = (e.Text("Paid."), attached(data, "image/png", "receipt.png"))
    await shop.service.finish(CALL, output=output)
    words = f"Paid.\n\n[image/png 'receipt.png', {len(data):,} bytes]"
    record = (await client.get(f"/api/v1/calls/{CALL}")).json()
    expected = record["state"]["result"]
    assert (expected["text"], expected["is_error"]) == (words, False)
    assert unplaced(expected["files"]) == [held(data)]
    waited = (await client.get(f"/api/v1/calls/{CALL}/decision")).json()
    assert waited["state"]["result"] == expected
    page = await client.get(f"/calls/{CALL}")
    assert page.status_code == 200
    # As the result, and in the row of the fact.
    assert page.text.count(f"[image/png &#39;receipt.png&#39;, {len(data):,} bytes]") == 2
    assert "{&#39;part&#39;" not in page.text
    assert f'href="{FILES}/{sha256(data).hexdigest()}"' in page.text
    assert (await client.get(f"{FILES}/{sha256(data).hexdigest()}")).content == data
    assert (await client.get("/decided")).status_code == 200


@pytest.mark.parametrize("data", [PICTURE, LARGE], ids=["in the fact", "stored"])
async def test_a_late_result_with_a_file_is_accepted_whole(shop, client, data):
    """What the model reads is what the tool returned, its picture too."""
    await started(shop)
    await shop.service.doubt(CALL)
    output = (e.Text("Paid."), attached(data, "image/png", "receipt.png"))
    with pytest.raises(AlreadyFilled, match="kept as late"):
        await shop.service.finish(CALL, output=output)
    accepted = await client.post(f"/api/v1/calls/{CALL}/reconcile", json={"late": True})
    assert (accepted.status_code, accepted.json()["status"]) == (200, "reconciled")
    assert unplaced(accepted.json()["result"]["files"]) == [held(data)]
    known = await shop.service.known_call(CallRef.parse(CALL))
    [late] = known.late
    assert known.reconciled.event.output == late.event.output
    assert (await client.get(f"/calls/{CALL}")).status_code == 200


async def test_a_program_records_files(shop, client):
    """In a message and as a result, in the form of the events. Repeating either is safe."""
    shop.visitor = PROGRAM
    message = {"text": [text("Is it damaged?"), sent(PICTURE), sent(LARGE)], "message": "m1"}
    for _ in range(2):
        said = await client.post("/api/v1/threads/shop/order-17/messages", json=message)
        assert said.status_code == 200
        assert unplaced(said.json()["files"]) == [held(PICTURE), held(LARGE)]
    ref = ThreadRef("shop", "order-17")
    [fact] = await shop.service.read(ref.said("m1"))
    assert by_digest(fact.event).text == (
        e.Text("Is it damaged?"),
        e.Media("image/png", e.Stored(sha256(PICTURE).hexdigest(), len(PICTURE)), "receipt.png"),
        e.Media("image/png", e.Stored(sha256(LARGE).hexdigest(), len(LARGE)), "receipt.png"),
    )
    await started(shop)
    link = {"kept": "linked", "url": "https://shop.example/receipt.pdf"}
    uploaded = {"kept": "uploaded", "provider": "openai", "id": "file-1"}
    result = {
        "output": [
            text("Paid."),
            sent(LARGE),
            {"part": "media", "media_type": "application/pdf", "source": link},
            {"part": "media", "media_type": "application/pdf", "source": uploaded},
        ]
    }
    for _ in range(2):
        ended = await client.post(f"/api/v1/calls/{CALL}/finish", json=result)
        assert ended.status_code == 200
        assert ended.json()["status"] == "returned"
        assert unplaced(ended.json()["result"]["files"]) == [held(LARGE)]
    other = await client.post(f"/api/v1/calls/{CALL}/finish", json={"output": [sent(PICTURE)]})
    assert other.status_code == 409
    known = await shop.service.known_call(CallRef.parse(CALL))
    assert [getattr(part, "source", None) for part in by_digest(known.finished.event).output] == [
        None,
        e.Stored(sha256(LARGE).hexdigest(), len(LARGE)),
        e.Linked("https://shop.example/receipt.pdf"),
        e.Uploaded("openai", "file-1"),
    ]


async def test_a_file_of_the_store_is_referred_to(shop, client):
    """By a program that stored it before, in its own workspace."""
    await shop.service.say("shop/order-17", (attached(LARGE, "image/png"),), message="m1")
    shop.visitor = PROGRAM
    [item] = (await client.get("/api/v1/threads/shop/order-17")).json()["items"]
    [known] = item["files"]
    source = {"kept": "stored", **{key: known[key] for key in ("digest", "size", "place")}}
    part = {"part": "media", "media_type": "image/png", "source": source}
    answer = await client.post(
        "/api/v1/threads/shop/order-18/messages", json={"text": [part], "message": "m1"}
    )
    assert unplaced(answer.json()["files"]) == [held(LARGE, name="")]


REFUSED = [
    ({"part": "media", "media_type": "image/png", "source": {"kept": "inline", "data": "%"}},
     "its data is not base64"),
    ({"part": "media", "media_type": "png", "source": {"kept": "linked", "url": "https://x"}},
     "is not one such as image/png"),
    ({"part": "media", "media_type": "image/png",
      "source": {"kept": "stored", "digest": "0" * 64, "size": 5}},
     "is not in the store of shop"),
    ({"part": "media", "media_type": "image/png", "source": {"kept": "guessed"}},
     "body.text.parts.0.media.source: "),
    ({"part": "wish", "tool": "refund", "arguments": "{}"}, "body.text.parts.0: "),
    ({"part": "text", "text": 5}, "body.text.parts.0.text.text: "),
]  # fmt: skip


async def test_a_file_that_cannot_be_recorded_is_refused(shop, client):
    """In one sentence that names its place; nothing is recorded."""
    shop.visitor = PROGRAM
    for part, why in REFUSED:
        message = {"text": [part], "message": "m1"}
        answer = await client.post("/api/v1/threads/shop/order-17/messages", json=message)
        assert answer.status_code == 422, part
        assert why in answer.json()["detail"]
    assert await shop.service.read(ThreadRef("shop", "order-17")) == ()


async def test_a_picture_opens_in_the_browser_and_nothing_else(shop, client):
    """Alone, so that one that no browser can draw hinders nobody in deciding."""
    files = (
        attached(PICTURE, "image/png", "shoe.png"),
        attached(pdf(), "application/pdf", "terms.pdf"),
        attached(b"<svg onload='alert(1)'/>", "image/svg+xml", "shoe.svg"),
    )
    await shop.service.say("shop/order-17", files, message="m1")
    page = (await client.get("/conversations/shop/order-17")).text
    for media, is_shown in zip(files, (True, False, False), strict=True):
        [file] = held_in(e.Said(role="user", text=(media,)))
        answer = await client.get(f"{FILES}/{file.digest}")
        headers = answer.headers
        kind = media.media_type if is_shown else "application/octet-stream"
        assert headers["content-type"] == kind
        assert headers["content-disposition"].startswith("inline" if is_shown else "attachment")
        assert (
            headers["content-security-policy"]
            == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        )
        opens = ' target="_blank" rel="noopener"' if is_shown else " download"
        assert f'<a href="{FILES}/{file.digest}"{opens}>' in page


async def test_what_led_to_a_call_has_its_files(shop, client):
    """The picture of the damage stands beside the refund that is asked for."""
    await shop.service.say(
        "shop/order-17", (e.Text("See here."), attached(PICTURE, "image/png")), message="m1"
    )
    await shop.ask(CALL)
    [message] = (await client.get(f"/api/v1/calls/{CALL}/context")).json()["messages"]
    assert unplaced(message["files"]) == [held(PICTURE, name="")]
    assert f"{FILES}/{sha256(PICTURE).hexdigest()}" in (await client.get(f"/calls/{CALL}")).text


async def test_a_refusal_is_marked(shop, client):
    """The model's own, which no policy and no person made."""
    thread = ThreadRef("shop", "order-17")
    async with Ledger.connect(shop.server.store.path, role="admin") as admin:
        await admin.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
        refused = e.ModelReplied(parts=(e.Refusal("I cannot help with that."),))
        await admin.append(thread.replied(1), refused)
    [reply] = (await client.get("/api/v1/threads/shop/order-17")).json()["items"]
    assert (reply["refused"], reply["texts"]) == (True, ["I cannot help with that."])
    page = (await client.get("/conversations/shop/order-17")).text
    assert '<span class="badge">refusal</span>' in page


def test_what_cannot_be_a_file_has_no_link():
    """A raw client may record anything as a digest, and it would be a part of a path."""
    for wrong in (e.Stored("../../../../calls", 5), e.Inline("%"), e.Linked("https://x")):
        assert held_in(e.Said(role="user", text=(e.Media("text/html", wrong),))) == []
