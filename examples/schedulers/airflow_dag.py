"""Scores each day's data on a compute target. For Airflow 3; files below /opt/score are on every worker of Airflow.

The command itself tries again where that may help: Airflow would also repeat a job that failed, and one that a person
canceled. When people clear a task, it runs with the same day, so with the same name, and run_once continues the job.
When people clear or fail a running task, or it exceeds its time, Airflow sends SIGTERM, and run_once cancels the job.
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
        bash_command="""
            for pause in 0 600 600 600; do
                sleep $pause
                ./run_once "score-{{ ds }}" job.yaml \
                    --set "inputs.rows.path=s3://our-data/{{ ds }}/*.csv" --set "output=s3://our-results/score/{{ ds }}"
                status=$?
                [[ $status =~ ^(1|75)$ ]] || break
            done
            exit $status""",
        env={"GRISTMILL_TARGET": "prod"},
        append_env=True,
        retries=0,
        execution_timeout=timedelta(hours=6),
    )
