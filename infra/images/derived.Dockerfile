# A worker image with packages of your own, for workers that should not install them at run time. The build context is a
# folder with a `requirements.txt` and the files that it names by a relative path:
#
#   docker build -f infra/images/derived.Dockerfile --build-arg WORKER=gristmill-worker -t my-worker my-folder
#
# The alternative needs no image: for a job that names its `environment`, each worker creates it once for each content,
# below /var/cache/gristmill.
ARG WORKER=gristmill-worker
FROM ${WORKER}
USER 0:0
WORKDIR /mnt
RUN --mount=type=bind,target=/mnt pip install --no-cache-dir --disable-pip-version-check --requirement requirements.txt
WORKDIR /var/cache/gristmill
USER 10001:10001
