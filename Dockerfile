# The image of both Deployments: dra-gate and the packages of requirements/runtime.txt, by hash. glibc, because
# cel-expr-python has no musl wheels. Needs no BuildKit. Another registry's Python: --build-arg PYTHON=…
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/runtime.txt requirements/
# pip stays outside the environment that is shipped.
RUN python -m venv --without-pip /opt/dra-gate \
 && pip --python /opt/dra-gate/bin/python install --require-hashes --only-binary=:all: --no-compile -r requirements/runtime.txt \
 && pip install --require-hashes --only-binary=:all: -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY webhook/dra_gate webhook/dra_gate
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/dra-gate/bin/python install --no-deps --no-index --no-compile /wheels/*.whl \
 # A read-only root can't keep what Python compiles at the first start.
 && /opt/dra-gate/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/dra-gate/lib

FROM ${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dra-gate" \
      org.opencontainers.image.description="Kubernetes admission webhook and policy gate for accelerators under Dynamic Resource Allocation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 65532 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dra-gate
COPY --from=build /opt/dra-gate /opt/dra-gate
ENV PATH=/opt/dra-gate/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["dra-gate"]
