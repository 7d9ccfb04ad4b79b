"""Write what comes of ``s3://`` addresses with and without a version, from a bucket with two: `test_models_bucket` runs it.

python bucket_program.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from headrace_models.fetching.addresses import from_bucket

server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
client = boto3.client("s3")
client.create_bucket(Bucket="bucket")
client.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
made = [
    client.put_object(Bucket="bucket", Key="a/m", Body=one)["VersionId"] for one in (b"1", b"2")
]
found = {}
for name in ("", *made, "nobody"):
    folder = Path(sys.argv[1]) / (name or "latest")
    folder.mkdir()
    try:
        got = from_bucket("s3://bucket/a/m" + (name and f"?versionId={name}"), folder)
        found[name] = [got.path.read_text(), got.revision]
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
server.stop()
sys.stdout.write(json.dumps({"made": made, "found": found}))
