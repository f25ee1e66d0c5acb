"""The usual server that people write themselves: FastAPI, one call of onnxruntime for each request.

python benchmarks/serving_fastapi.py MODEL PORT inline|threads   # prints a line when it listens

inline: `async def`, the call on the event loop. threads: `def`, the call on FastAPI's thread pool.
"""

import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

path, port, style = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1 if style == "threads" else 0
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
outputs = [output.name for output in session.get_outputs()]
app = FastAPI()


class Body(BaseModel):
    """The tensor, nested."""

    data: list


def _answer(body):
    values = session.run(None, {name: np.asarray(body.data, np.float32)})
    return {output: value.tolist() for output, value in zip(outputs, values, strict=True)}


if style == "inline":

    @app.post("/predict")
    async def predict(body: Body):
        """JSON in, JSON out."""
        return _answer(body)

else:

    @app.post("/predict")
    def predict(body: Body):
        """JSON in, JSON out."""
        return _answer(body)


@app.post("/raw/{sizes}")
async def raw(sizes: str, request: Request):
    """A tensor's bytes in, the first output's bytes out."""
    array = np.frombuffer(await request.body(), np.float32).reshape([int(size) for size in sizes.split("x")])
    return Response(session.run(None, {name: array})[0].tobytes(), media_type="application/octet-stream")


print("ready", flush=True)
uvicorn.run(app, port=port, log_level="warning", access_log=False)
