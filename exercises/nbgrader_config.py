"""nbgrader's settings for a folder that `make sheets` has made: exercises/README.md."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are small

c = get_config()  # noqa: F821  # nbgrader defines it
c.CourseDirectory.course_id = "annotated_transformer"
# A comment: variables keep their None and functions their NotImplementedError, which follow it.
c.ClearSolutions.code_stub = {"python": "# Write your answer here."}
c.ClearSolutions.text_stub = "*Write your report here.*"
c.Execute.timeout = 300
c.Execute.startup_timeout = 300
c.Execute.iopub_timeout = 60  # with the usual 4 seconds a busy machine loses results
# What Moodle's "Download all submissions" names a student's folder or file.
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/]+)_\d+_assignsubmission_file_?/?(?P<file_id>[^/]+)"
)
