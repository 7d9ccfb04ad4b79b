# Never built: no container engine was at hand; a test checks the commands in it, without a device.
# At the root of the repository, after `./dev wheels`; the host needs a driver for CUDA 12 and NVIDIA's container toolkit:
#   docker build -f docker/gpu.Dockerfile -t headrace-gpu .
#   docker run --rm --gpus all -p 8000:8000 -v "$PWD/models:/models:ro" headrace-gpu /models/pictures.toml
FROM python:3.12-slim
COPY dist /wheels
RUN pip install --no-cache-dir --find-links /wheels "headrace[cli]" headrace-cv headrace-torch headrace-serve
RUN headrace plugins list --check
USER nobody
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["headrace", "serve", "--host=0.0.0.0", "--drain-timeout=20"]
