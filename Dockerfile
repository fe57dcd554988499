# docker build --target cpu --tag egglm:cpu .
# docker run --rm --init --publish 127.0.0.1:8000:8000 --volume egglm-cache:/cache egglm:cpu

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/egglm
COPY pyproject.toml requirements.lock ./
# The dependencies alone first: this layer is kept while only our own sources change.
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > dependencies.txt \
    && /opt/egglm/bin/pip install --no-cache-dir --constraint requirements.lock --requirement dependencies.txt
COPY README.md LICENSE ./
COPY server server
COPY engine engine
COPY models models
COPY loadtest loadtest
RUN /opt/egglm/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim AS cpu
# The compiler of the native runtime: without it models run in NumPy, which is slow.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 egglm \
    && mkdir /cache /models \
    && chown egglm:egglm /cache
COPY --from=build /opt/egglm /opt/egglm
ENV PATH=/opt/egglm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    EGGLM_HOST=0.0.0.0 \
    EGGLM_PORT=8000 \
    EGGLM_CACHE_DIR=/cache \
    HF_HOME=/cache/huggingface
USER egglm
VOLUME ["/cache", "/models"]
EXPOSE 8000
HEALTHCHECK --start-period=10m --start-interval=2s --interval=10s --timeout=5s --retries=3 \
    CMD python -c "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['EGGLM_PORT'] + '/ready', timeout=4)"
ENTRYPOINT ["egglm"]
CMD ["serve"]
