"""The variables that tell a job where to resume."""

from jobs.core.checkpoint_interval import resume_variables


def test_job_without_a_checkpoint_gets_no_variables():
    assert resume_variables({}, "--load {path}") == {}


def test_checkpoint_step_and_skipped_data_are_variables():
    assert resume_variables({"path": "/c/100", "step": 100, "skip": [101, 150]}, "") == {
        "ACME_CHECKPOINT": "/c/100",
        "ACME_CHECKPOINT_STEP": "100",
        "ACME_SKIP_STEPS": "101-150",
    }


def test_template_of_the_job_is_filled_in():
    variables = resume_variables({"path": "/c/{step}", "step": 7}, "--load {path} --iteration {step}")

    assert variables["ACME_CHECKPOINT_ARGS"] == "--load /c/{step} --iteration 7"
    assert "ACME_SKIP_STEPS" not in variables


def test_template_is_not_used_without_a_path():
    assert "ACME_CHECKPOINT_ARGS" not in resume_variables({"step": 7}, "--load {path}")
