"""Diagnoses the files of a cluster or a job."""
