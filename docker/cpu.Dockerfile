# Never built: no container engine was at hand; a test runs what RUN lines do in an empty environment.
# At the root of the repository, after `./dev wheels`:
#   docker build -f docker/cpu.Dockerfile -t headrace-cpu .
#   docker run --rm -p 8000:8000 -v "$PWD/models:/models:ro" headrace-cpu /models/color.toml
FROM python:3.12-slim
COPY dist /wheels
RUN pip install --no-cache-dir --find-links /wheels "headrace[cli]" headrace-cv headrace-ort headrace-serve
RUN headrace plugins list --check
USER nobody
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["headrace", "serve", "--host=0.0.0.0", "--drain-timeout=20"]
