# A worker image with packages of your own, for workers that should not install them at run time. The build context is a
# folder with a `requirements.txt` and the files that it names by a relative path. Every package needs a hash there, so
# that an image built later contains the same files. Either of these writes it from a list of packages:
#
#   uv pip compile --universal --generate-hashes requirements.in --output-file requirements.txt
#   pip-compile --generate-hashes requirements.in
#
#   docker build -f infra/images/derived.Dockerfile --build-arg WORKER=gristmill-worker -t my-worker my-folder
#
# The alternative needs no image: for a job that names its `environment`, each worker creates it once for each content,
# below /var/cache/gristmill.
ARG WORKER=gristmill-worker
FROM ${WORKER}
USER 0:0
WORKDIR /mnt
RUN --mount=type=bind,target=/mnt \
    pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements.txt
WORKDIR /var/cache/gristmill
USER 10001:10001
