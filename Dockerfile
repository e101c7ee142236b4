# Serves a folder of recordings: no torch, no GPU.
#   docker build --tag vramscope .
#   docker run --rm --publish 127.0.0.1:8050:8050 --volume "$PWD/traces:/traces:ro" vramscope
# The address to open, with its token, is in the output.
FROM python:3.12-slim AS build
COPY . /src
RUN pip wheel --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[dashboard]" && useradd --create-home --uid 1000 reader
USER 1000
ENV VRAMSCOPE_CACHE=/home/reader/.cache/vramscope
EXPOSE 8050
# Inside of the container every address is bound; outside, the published port is the one of this machine only.
ENTRYPOINT ["vramscope", "serve", "--host", "0.0.0.0", "--allow-host", "localhost", "--allow-host", "127.0.0.1", "--port", "8050"]
CMD ["/traces"]
