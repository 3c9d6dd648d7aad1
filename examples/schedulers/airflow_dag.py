"""Scores each day's data on a compute target. For Airflow 3; files below /opt/score are on every worker of Airflow.

Airflow tries a task again with the same day, so with the same name, and run_once continues the job. When people clear
or fail a running task, or it exceeds its time, Airflow sends SIGTERM, and run_once cancels the job.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="score",
    schedule="10 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # Each day has a job and an output of its own, so days may also run beside each other.
    max_active_runs=1,
):
    BashOperator(
        task_id="score",
        cwd="/opt/score",
        bash_command="""exec ./run_once "score-{{ ds }}" job.yaml \
            --set "inputs.rows.path=s3://our-data/{{ ds }}/*.csv" --set "output=s3://our-results/score/{{ ds }}" """,
        env={"GRISTMILL_TARGET": "prod"},
        append_env=True,
        retries=3,
        retry_delay=timedelta(minutes=10),
        execution_timeout=timedelta(hours=6),
    )
