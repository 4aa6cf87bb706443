"""Copiers that are killed again and again, two at a time: each object is put once, and the copy
alone gives the log byte for byte.

Real processes on a real broker, and a storage that speaks S3. In CI a few; `make kills` kills 200
(COPIER_KILLS).
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import storage
from program import Ended, environment, record, started, up
from sections import settings_file
from storage import NAME, URL, client, names
from until import until

from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef

KILLS = int(os.environ.get("COPIER_KILLS", "6"))
#: New facts for each kill.
FACTS_A_KILL = 30


def said(number: int) -> tuple[object, e.Event]:
    return ThreadRef("shop", "t1").said(f"m{number}"), e.Said(role="user", text="hello")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_copiers_copy_each_fact_once(tmp_path: Path, within: Callable[..., Ended]) -> None:
    store, chance, count = tmp_path / "store", random.Random(KILLS), 0
    with storage.serving() as url:
        assert environment()["AWS_ENDPOINT_URL_S3"] == url
        storage.make_bucket()
        with up(store, "--workers", "none"):
            record(store, said(0))
            key = within("seal", "init", "ayes.example", "--store", store, "--json").one["key"]
        settings_file(store, f'[copies]\nurl = "{URL}"\nretention = "30d"\n')
        work = ("work", "copier", "--store", store, "--json")
        with up(store, "--workers", "sealer"):
            for _ in range(0, KILLS, 2):
                count += 2 * FACTS_A_KILL
                record(store, *(said(n) for n in range(count - 2 * FACTS_A_KILL + 1, count + 1)))
                with started(*work) as one, started(*work) as other:
                    for process in one, other:
                        assert process.stdout
                        assert process.stdout.readline()
                    for process in one, other:
                        time.sleep(chance.random() * 0.4)
                        process.send_signal(signal.SIGKILL)
                        process.wait()
        whole = (count + 1) // 100 * 100
        with up(store) as running:
            assert {"sealer", "copier"} <= {*running["workers"]}
            copied = store / "seal" / "copied"
            asyncio.run(until(lambda: copied.read_text() == f"{whole}\n"))
            expected = [f"{n:012}-{n + 99:012}" for n in range(1, whole, 100)]
            assert names() == names("shop/checkpoint/") == expected
            export = tmp_path / "export"
            assert within("seal", "export", export, "--store", store).code == 0
            assert f"{whole:,} facts are copied" in within("doctor", "--store", store).out
        for name in expected[::2]:
            client().put_object(Bucket=NAME, Key=f"shop/log/{name}", Body=b"forged")
            client().delete_object(Bucket=NAME, Key=f"shop/checkpoint/{name}")
        again = tmp_path / "again"
        alone = ("--store", tmp_path / "nothing", "--key", key)
        ended = within("seal", "export", again, "--from", URL, *alone)
        hidden = f"wrote over {2 * len(expected[::2]):,} objects, or deleted them"
        assert (ended.code, hidden in ended.err) == (0, True), ended
        of_log, of_copy = (file.read_bytes().split(b"\n") for file in (export, again))
        assert of_copy[1:-1] == of_log[1 : whole + 1]
        ended = within("verify", "--export", again, *alone)
        assert (ended.code, f"the first {whole:,} of {whole:,} facts" in ended.out) == (0, True)
        ended = within("seal", "export", again, "--from", URL, *alone)
        assert (ended.code, "exists already" in ended.err) == (2, True)
        client().delete_object(Bucket=NAME, Key="nothing")
        ended = within("seal", "export", tmp_path / "no", "--from", "s3://nobody", *alone)
        assert (ended.code, "NoSuchBucket" in ended.err) == (2, True)
        trust = tmp_path / "ayes-trust.toml"
        root = within("trust", "key", "root", tmp_path / "root.key", "--json").one["key"]
        log = key.split("/")[1].split("+")[0]
        trust.write_text(f'log = "{log}"\nroots = ["{root}"]\nsealer = "{key}"\n')
        by_trust = ("--trust", trust, "--store", tmp_path / "nothing")
        ended = within("seal", "export", tmp_path / "by-trust", "--from", URL, *by_trust)
        assert (ended.code, (tmp_path / "by-trust").read_bytes()) == (0, again.read_bytes())
